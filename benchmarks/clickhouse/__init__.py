"""The cost of inserting, drawing and listing runs in ClickHouse."""
