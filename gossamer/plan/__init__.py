"""Plans of networks: lowering, tuning, choice, execution, storage and reports."""
