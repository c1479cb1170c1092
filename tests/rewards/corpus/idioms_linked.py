"""Idioms of tests that build linked lists and trees, or walk them."""

from tests.rewards.corpus.idiom import Idiom, functions

LINKED: dict[str, Idiom] = {
    "a linked list that the tests build": functions(
        """
        from solution import Node, reverse

        def build(*values):
            head = None
            for value in reversed(values):
                head = Node(value, head)
            return head

        def walk(node):
            while node is not None:
                yield node.value
                node = node.next

        def test_reverse():
            assert list(walk(reverse(build(1, 2, 3)))) == [3, 2, 1]
            assert reverse(None) is None
        """,
        """
        class Node:
            def __init__(self, value, next=None): self.value, self.next = value, next
        def reverse(head):
            before = None
            while head: head.next, before, head = before, head, head.next
            return before
        """,
        """
        class Node:
            def __init__(self, value, next=None): self.value, self.next = value, next
        def reverse(head): return head
        """,
    ),
    "nodes of a class of the tests": functions(
        """
        from solution import depth, invert

        class Tree:
            def __init__(self, value, left=None, right=None):
                self.value, self.left, self.right = value, left, right

        def test_depth():
            assert depth(None) == 0
            assert depth(Tree(1, Tree(2, Tree(3)), Tree(4))) == 3

        def test_invert():
            root = invert(Tree(1, Tree(2), Tree(3)))
            assert (root.value, root.left.value, root.right.value) == (1, 3, 2)
        """,
        """
        def depth(node): return 1 + max(depth(node.left), depth(node.right)) if node else 0
        def invert(node):
            if node: node.left, node.right = invert(node.right), invert(node.left)
            return node
        """,
        """
        def depth(node): return 1 + max(depth(node.left), depth(node.right)) if node else 0
        def invert(node): return node
        """,
    ),
    "a tree that a factory returns": functions(
        """
        from solution import build

        def inorder(node):
            return inorder(node.left) + [node.key] + inorder(node.right) if node else []

        def test_tree():
            root = build([5, 2, 8, 1])
            assert root.key == 5
            assert root.left.left.key == 1
            assert root.right.right is None
            assert inorder(root) == [1, 2, 5, 8]
        """,
        """
        class Node:
            def __init__(self, key): self.key, self.left, self.right = key, None, None
        def insert(node, key):
            if node is None: return Node(key)
            side = "left" if key < node.key else "right"
            setattr(node, side, insert(getattr(node, side), key))
            return node
        def build(keys):
            root = None
            for key in keys: root = insert(root, key)
            return root
        """,
        """
        class Node:
            def __init__(self, key): self.key, self.left, self.right = key, None, None
        def build(keys):
            root = node = Node(keys[0])
            for key in keys[1:]:
                node.left = Node(key)
                node = node.left
            return root
        """,
    ),
}
