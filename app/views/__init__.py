"""The pages of the app: each reads the visitor's choice, runs a job, and draws the result."""
