"""Rules about axes, targets, numbers and calls that do something else than what they are meant
for.
"""
