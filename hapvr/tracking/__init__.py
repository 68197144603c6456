"""The MLflow side: runs, the packaged model, the registry; and progress to an orchestrator."""
