"""A suite in a pool: the coordinator, the lanes, and the engines that start them."""
