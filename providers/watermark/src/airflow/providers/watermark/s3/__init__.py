"""Amazon S3: the clients, and the pages of its listings."""
