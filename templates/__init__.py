"""Templates and style of the HTML report: data only."""
