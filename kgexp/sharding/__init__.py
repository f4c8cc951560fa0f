"""What a table is: where its rows live and who owns them. Nothing else in the package knows."""
