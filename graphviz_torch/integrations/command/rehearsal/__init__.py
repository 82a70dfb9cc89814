"""The command `rehearse`: run a script as one rank of many, without the devices for them."""
