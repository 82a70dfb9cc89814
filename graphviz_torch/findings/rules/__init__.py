"""The rules, in a file for each subject."""
