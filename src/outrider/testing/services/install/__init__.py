"""CheckResult or installing the programs of private servers."""
