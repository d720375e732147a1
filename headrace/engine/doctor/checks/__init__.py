"""One check per file: `CHECK`, silent on a healthy patient."""
