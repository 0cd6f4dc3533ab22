"""Settings: flags, environment variables, URLs, TLS files and masked secrets."""
