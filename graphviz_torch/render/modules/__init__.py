"""A graph by module: what each computes, holds, keeps for backward and learns."""
