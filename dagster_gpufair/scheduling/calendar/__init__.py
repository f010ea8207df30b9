"""What is known of the future."""
