"""The worker's metrics, alerts, dashboard and logs."""
