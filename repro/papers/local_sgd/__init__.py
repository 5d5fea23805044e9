"""Local SGD and DiLoCo: ranks that train by themselves and average their weights rarely."""
