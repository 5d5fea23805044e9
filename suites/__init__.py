"""The bundled suites, one YAML file each: data only."""
