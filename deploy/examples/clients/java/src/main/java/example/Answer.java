package example;

import pagantic.orchestrator.v1.Event.ExecutionEvent;
import pagantic.orchestrator.v1.ExecutionOuterClass.SystemResponse;

/** The text of an answer as it streams, and how much of it stands on the terminal. */
final class Answer {
    private SystemResponse response;
    private long sequence;
    private String text = "";
    private String shown = "";
    private int stored;

    /** Reads an event, and shows the text that it brings. */
    void take(ExecutionEvent event) {
        if (event.getSequence() > sequence) { // Deltas repeat the sequence of the stored event before them.
            sequence = event.getSequence();
            stored = text.length();
        }
        switch (event.getEventCase()) {
            case CONTENT_DELTA -> text += event.getContentDelta().getText();
            case ATTEMPT_DISCARDED -> {
                text = "";
                stored = 0;
            }
            case COMPLETED -> {
                response = event.getCompleted().getResponse();
                text = response.getContent();
            }
            default -> {}
        }
        show();
    }

    /** Forgets the text after the last stored event: who follows from that event gets it again. */
    void rewind() {
        text = text.substring(0, stored);
    }

    /** The sequence of the last stored event; 0 before the first. */
    long sequence() {
        return sequence;
    }

    /** The response; null before the end. */
    SystemResponse response() {
        return response;
    }

    private void show() {
        if (!shown.startsWith(text)) {
            Terminal.write(text.startsWith(shown) ? text.substring(shown.length()) : "\n" + text);
            shown = text;
        }
    }
}
