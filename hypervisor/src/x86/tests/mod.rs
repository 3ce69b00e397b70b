//! Tests of what is the same for guests on all x86 processors. `svm/tests` and `vmx/tests` each
//! include these files, which find their processor there.
