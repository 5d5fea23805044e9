"""The sections of a page below its first screen: one table or figure group each."""
