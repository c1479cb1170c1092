set -eu
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=Ann GIT_AUTHOR_EMAIL=ann@example.org
export GIT_COMMITTER_NAME=Ann GIT_COMMITTER_EMAIL=ann@example.org
n=0
commit() {
  n=$((n + 1))
  export GIT_AUTHOR_DATE="2024-01-01T00:00:0$n+0000" GIT_COMMITTER_DATE="2024-01-01T00:00:0$n+0000"
  git add -A
  git -c commit.gpgsign=false commit --quiet -m "$1"
}
git init --quiet --initial-branch=main shop
cd shop
printf 'prices = {"tea": 3, "cake": 4}\n' > shop.py
commit "Prices"
printf '# shop\n' > README.md
commit "Readme"
git checkout --quiet -b attempt
printf 'def total(items): return 0\n' >> shop.py
commit "Checkout: first attempt at a total"
git checkout --quiet main
git checkout --quiet -b checkout
printf 'def total(items):\n    return sum(prices[i] for i in items)\n' >> shop.py
commit "Checkout: total"
printf 'def receipt(items):\n    return [*items, total(items)]\n' >> shop.py
commit "Checkout: receipt"
sed -i 's/return sum(/return round(1.19 * sum(/; s/in items)$/in items), 2)/' shop.py
commit "Checkout: final total"
git checkout --quiet main
git branch --quiet -D checkout attempt
rm -rf .git/logs
