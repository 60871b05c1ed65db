"""What is made of result rows: tables, pictures and text in the terminal."""
