"""What is free in a pool, on its nodes and cards."""
