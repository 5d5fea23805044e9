"""AdaptAhead, an update rule of one paper."""
