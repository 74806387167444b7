"""Listings of object stores: ours beside its peers, on the same servers and in one run."""
