"""`repro bench comm`: communication algorithms against the bound and the backend's own all-reduce."""
