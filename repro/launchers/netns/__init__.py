"""The emulated network: namespaces, links, rates."""
