"""What every gradient looked like, and how long its node took."""
