set -eu
exec python3 -I /tests/verify.py
