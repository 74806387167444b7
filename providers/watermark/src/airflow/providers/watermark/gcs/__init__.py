"""How Google Cloud Storage is asked, and what its answers mean."""
