"""Recipes: ways to write texts that are programs over the parts of an engine."""
