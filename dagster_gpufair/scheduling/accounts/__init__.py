"""What each team and project may have, has, and has to leave to others."""
