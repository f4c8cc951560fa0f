from small_graph import configured, graph, graph_folder  # noqa: F401  # fixtures
