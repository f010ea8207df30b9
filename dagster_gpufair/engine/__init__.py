"""One pass over requests and leases: who holds what, what is decided, and how it is carried out."""
