// Go allows a function without a body, which is linked from elsewhere, only in a package with assembly.
