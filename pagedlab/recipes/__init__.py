"""Recipes: each file adds one feature to the engine, through its public seams."""
