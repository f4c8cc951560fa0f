"""How the ranks of a job start, watch each other and end."""
