"""What runs' pages say, and when."""
