//! Page tables of several formats by one walker.
#![no_std]
