"""How a prefix of an object store is listed, whatever the store."""
