"""Suite -> Plan: cells, order of execution, costs, and what a plan needs leave to use."""
