"""Makes, keeps and tries the graphs that `draftwise.models.runner.executors.inductor_cpu` runs."""
