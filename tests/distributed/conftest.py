from small_graph import configured, graph, graph_folder, typed  # noqa: F401  # fixtures
