"""The search service and its page: the only room that knows FastAPI, Starlette and uvicorn."""
