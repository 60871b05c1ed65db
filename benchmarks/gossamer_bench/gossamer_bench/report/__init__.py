"""Reports made of result rows: Markdown tables, plots and text in the terminal."""
