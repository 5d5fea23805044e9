"""Wait-free back-propagation with sufficient factors (Poseidon): fully connected layers that gather factors."""
