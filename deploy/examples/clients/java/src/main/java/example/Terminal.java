package example;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.regex.Pattern;

/** What the program shows: the answer on standard output, everything else beside it. */
final class Terminal {
    private static final Pattern CONTROL = Pattern.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]");
    private static final PrintStream OUT = stream(FileDescriptor.out);
    private static final PrintStream ERR = stream(FileDescriptor.err);

    private Terminal() {}

    /** Writes a part of the answer. */
    static void write(String text) {
        OUT.print(printable(text));
        if (OUT.checkError()) {
            System.exit(0); // A reader that is gone is no failure.
        }
    }

    /** Tells the user something beside the answer. */
    static void note(String format, Object... values) {
        ERR.println(printable(String.format(Locale.ROOT, format, values)));
    }

    /** Returns the text without control characters, so that a model's answer cannot steer the terminal. */
    private static String printable(String text) {
        return CONTROL.matcher(text).replaceAll("\ufffd");
    }

    private static PrintStream stream(FileDescriptor descriptor) {
        return new PrintStream(new FileOutputStream(descriptor), true, StandardCharsets.UTF_8);
    }
}
