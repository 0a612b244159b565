"""Galleries on a Milvus cluster."""
