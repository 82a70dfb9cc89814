"""Record the copies between devices, with the program's line of each copy."""
