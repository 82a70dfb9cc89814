"""`rehearse`: a script as one rank of many, without the machine for it."""
